"""Evaluation of models on texts, questions and tasks."""
