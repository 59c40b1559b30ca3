"""Model calls: which model a name means, what it is asked, how its answer is read, and how calls fail."""
