"""Whether every receiver ends with the truth when the notifier is killed again and again."""
