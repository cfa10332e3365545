"""Which technique helps here, and by how much: every one tried alone and in the stacks that go together."""
