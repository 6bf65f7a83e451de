"""Many runs chosen by Optuna through Ray Tune."""
