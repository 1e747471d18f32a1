"""The shell around the engine: the loop, recovery, what goes on beside it. The only room that acts."""
