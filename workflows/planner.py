"""The smallest useful agent: any model, with a tool, durable."""

from activities.dates import weekday
from refold.agent import Agent
from refold.temporal import workflow_for

Planner = Agent("planner", instructions="Help with dates. Look weekdays up.", tools=[weekday])

PlannerWorkflow = workflow_for(Planner)
