"""Transformers of text: a BERT-like encoder, a GPT-like decoder, a Llama, and what attacks ask of any of them."""
