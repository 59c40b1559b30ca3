// Walks through all that a client does with a gateway, over one transport, and prints what it saw as one JSON object:
//   node every_method.mjs URL jsonrpc|rest|0.3 WEBHOOK
import { Role, TaskState } from "@a2a-js/sdk";
import {
  AgentCardResolver,
  Client,
  ClientFactory,
  ClientFactoryOptions,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from "@a2a-js/sdk/client";
import { LegacyJsonRpcTransport } from "@a2a-js/sdk/compat/v0_3/client";

const [url, transport, webhook] = process.argv.slice(2);
const legacy = transport === "0.3";

async function connected() {
  if (legacy) {
    const card = await AgentCardResolver.default.resolve(url);
    return new Client(new LegacyJsonRpcTransport({ endpoint: `${url}/` }), card);
  }
  const factory = transport === "rest" ? new RestTransportFactory() : new JsonRpcTransportFactory();
  const options = { ...ClientFactoryOptions.default, transports: [factory] };
  return await new ClientFactory(options).createFromUrl(url);
}

let sent = 0;

function request(text, skill, { taskId = "", contextId = "", immediately = false } = {}) {
  const message = {
    messageId: `js-${(sent += 1)}`,
    role: Role.ROLE_USER,
    parts: [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }],
    taskId,
    contextId,
    metadata: undefined,
    extensions: [],
    referenceTaskIds: [],
  };
  const configuration = {
    acceptedOutputModes: [],
    taskPushNotificationConfig: undefined,
    returnImmediately: immediately,
  };
  return { tenant: "", message, configuration, metadata: skill ? { skill } : undefined };
}

const state = (task) => TaskState[task.status.state];
const texts = (message) => message.parts.map((part) => part.content.value).join("");

// The SDK gives the kind of what comes with `$case`, or as the value itself.
function kind(event) {
  const payload = event.payload ?? event;
  const value = payload.value ?? payload;
  const named = payload.$case ?? (value.artifact ? "artifactUpdate" : value.status && value.taskId ? "statusUpdate" : "task");
  return named === "statusUpdate" || named === "task" ? `${named} ${state(value)}` : named;
}

async function collected(events) {
  const found = [];
  for await (const event of events) found.push(kind(event));
  return found;
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return error.name;
  }
  return "not refused";
}

const seen = {};
const client = await connected();
const card = await AgentCardResolver.default.resolve(url);
seen.skills = card.skills.map((skill) => skill.id);

const echoed = await client.sendMessage(request("Hello", "echo"));
seen.blocking = [state(echoed), texts(echoed.artifacts[0])];

seen.unnamed = await refused(() => client.sendMessage(request("Hello", "")));

const asking = await client.sendMessage(request("Hi", "ask", { immediately: true }));
seen.contexts = asking.contextId !== "";

seen.streamed = await collected(client.sendMessageStream(request("Hello", "echo")));

const first = await client.sendMessage(request("Hi", "ask"));
seen.asked = [state(first), texts(first.status.message)];
const subscription = client.resubscribeTask({ tenant: "", id: first.id });
const whole = (async () => await collected(subscription))();
if (webhook) {
  await client.createTaskPushNotificationConfig({
    tenant: "", taskId: first.id, id: "hook", url: webhook, token: "t0ken", authentication: undefined,
  });
  const kept = await client.listTaskPushNotificationConfig({ tenant: "", taskId: first.id, pageSize: 0, pageToken: "" });
  seen.webhooks = kept.configs.map((config) => config.id);
}
const second = await client.sendMessage(request("Ada", "", { taskId: first.id }));
seen.answered = [state(second), texts(second.status.message), second.contextId === first.contextId];
const canceled = await client.cancelTask({ tenant: "", id: first.id, metadata: undefined });
seen.canceled = state(canceled);
seen.subscribed = legacy ? "its stream ends when it is asked" : await whole;

const got = await client.getTask({ tenant: "", id: first.id });
seen.got = [state(got), got.history.length > 0];
seen.unknown = await refused(() => client.getTask({ tenant: "", id: "nobody" }));
seen.ended = await refused(() => client.cancelTask({ tenant: "", id: first.id, metadata: undefined }));
if (!legacy) {
  const listed = await client.listTasks({
    tenant: "", contextId: first.contextId, status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: "",
    statusTimestampAfter: undefined,
  });
  seen.listed = listed.tasks.map((task) => task.id === first.id);
}
await client.cancelTask({ tenant: "", id: asking.id, metadata: undefined });
console.log(JSON.stringify(seen));
