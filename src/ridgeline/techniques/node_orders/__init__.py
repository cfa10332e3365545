"""On which node each stage and its copies stand, where links between nodes are not alike."""
