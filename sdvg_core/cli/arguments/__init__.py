"""What the commands study and bench may be given. Only words are imported here, so that --help answers at once."""
