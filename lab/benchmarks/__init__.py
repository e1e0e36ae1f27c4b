"""How fast each route is: models with random weights, planned decisions, one process, medians over rounds."""
