"""How fast each route is: models with random weights, scripted decisions, one process, medians over rounds."""
