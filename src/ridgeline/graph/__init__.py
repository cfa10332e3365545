"""What is computed: operators, shapes and the builders of each architecture family."""
