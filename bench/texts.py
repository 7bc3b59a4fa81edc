"""English and Chinese texts of a log, drawn from a pool."""

from random import Random

_ENGLISH = """
the a of to in and for with on by from as at is was were has not all some two three between under over after before
model tool agent report ledger invoice market server window letter signal garden engine harbour mountain budget
contract customer delivery network database archive question answer reason result summary evidence figure table
found checked wrote counted compared measured opened closed failed repeated waited moved read sent kept changed
early late quiet broken complete missing second final public private northern local daily yearly small large
"""
_CHINESE = """
报告 数据 结果 市场 客户 合同 发票 预算 服务器 网络 模型 工具 代理 问题 答案 原因 证据 表格 摘要
档案 北方 城市 天气 检查 比较 统计 打开 关闭 失败 重复 等待 移动 读取 发送 保留 修改 完成 缺失
最终 公开 每天 较大 较小 我们 他们 已经 没有 因为 所以 可以
"""
_POOL = 20_000
_PATHS = 500


class Texts:
    """A third of the texts is Chinese; one of a thousand is long."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._english, self._chinese = _ENGLISH.split(), _CHINESE.split()
        self._short = [self._made(3, 6) for _ in range(_POOL)]
        self._all = [self._made(5, 14) for _ in range(_POOL)]
        self._paths = [f"{random.choice(self._english)}.{number}" for number in range(_PATHS)]

    def _made(self, low: int, high: int) -> str:
        words = self._random.randint(low, high)
        if self._random.random() < 1 / 3:
            return "".join(self._random.choices(self._chinese, k=words)) + "。"
        return " ".join(self._random.choices(self._english, k=words)) + "."

    def short(self) -> str:
        """Some words."""
        return self._short[int(self._random.random() * _POOL)]

    def text(self) -> str:
        """A sentence, or pages of them."""
        if self._random.random() < 0.001:
            return " ".join(self._random.choices(self._all, k=self._random.randint(20, 100)))
        return self._all[int(self._random.random() * _POOL)]

    def path(self) -> str:
        """A file."""
        return self._paths[int(self._random.random() * _PATHS)]
