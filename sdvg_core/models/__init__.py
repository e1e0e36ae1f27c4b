"""Which models a run has, how they are loaded, and what their results depend on."""
