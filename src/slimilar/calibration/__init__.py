"""Images and what they tell: batches, the recorded program, moments, Fisher weights."""
