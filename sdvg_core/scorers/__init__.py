"""Scorers: parts that judge decoded pixel frames. ImageReward is the one we ship."""

from .image_reward import ImageRewardScorer, load_image_reward
from .preprocess import Crop
from .shapes import ImageRewardConfig, image_reward_shapes

__all__ = ["Crop", "ImageRewardConfig", "ImageRewardScorer", "image_reward_shapes", "load_image_reward"]
