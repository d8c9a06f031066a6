"""An engine that rests: paused, or asleep without executors."""
