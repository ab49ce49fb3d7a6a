"""Take whole batches from Kafka into Faust: the buffer, the consumer that drains it, the runner of tasks."""
