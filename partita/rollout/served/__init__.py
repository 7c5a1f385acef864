"""The policy behind an OpenAI-compatible `base_url`: an agent's calls become one sample with exact ids."""
