"""What was said, as providers accept it: messages, files, names and schemas; and what they answer, as a `Reply`."""
