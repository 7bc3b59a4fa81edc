"""Who answers: the model providers behind the kernel's `ChatModel` port; knows no run, no store and no HTTP surface."""
