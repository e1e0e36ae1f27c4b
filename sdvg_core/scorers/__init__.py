"""Scorers score decoded pixel frames. ImageReward is the one we ship."""

from .config import ImageRewardConfig
from .image_reward import ImageRewardScorer, load_image_reward
from .preprocess import Crop

__all__ = ["Crop", "ImageRewardConfig", "ImageRewardScorer", "load_image_reward"]
