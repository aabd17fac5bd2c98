"""What a consumer wants of a topic: tags, SQL92 expressions, Bloom filters."""
