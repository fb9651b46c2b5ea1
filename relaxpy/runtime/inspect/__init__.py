"""What looks at executables and executions: listings, profiles, timelines, memory plans."""
