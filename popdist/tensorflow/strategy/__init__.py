"""PopDistStrategy: it carries out tf.distribute's requests by calls of the engine."""
