"""The agent of a host: starts, kills and watches the executors there for a core on another host."""
