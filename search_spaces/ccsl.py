"""What a sweep of CCSL explores: one line per knob, with its reason."""

SPACE = {
    "learner_weight": {"low": 0.5, "high": 1.0},  # lambda 1, paper 0.9
    "extra_weight": {"low": 0.0, "high": 1.0},  # lambda 2, paper 0.1
    "distill_weight": {"low": 0.01, "high": 10.0, "log": True},  # lambda 3, paper 0.1
    "extra_queue": {"choices": [32, 64, 128, 256, 512]},  # Table 5
    "teacher_keep": {"choices": [0.9, 0.99, 0.996, 0.999]},  # m_t, paper 0.996
    "exemplars": {"choices": ["kmeans_variance", "random"]},  # Table 4 is on random ones
    "exemplars_per_class": {"choices": [5, 10, 20, 50]},  # paper 20
    "distill_mean": {"choices": [False, True]},  # Eq. 5 is a sum
}

SPACES = {
    "budget": {  # the search that every row of a table gets: the rate, and the method's main knob
        "learning_rate": {"choices": [0.005, 0.01, 0.02]},
        "distill_weight": {"choices": [0.01, 0.1]},  # the paper's, and less: a sum over exemplars
        "temperature": 0.1,  # of its learner, held
    },
}
