"""Training with parameter servers: one chief says what is done, workers compute, parameter servers hold the weights."""
