//go:build browser

package dashboard

import (
	"testing"

	"opencode-mesh/test/fleet"
)

// TestADiffLeadsFromOneTextToTheOther asks the module itself: from the steps both texts
// come out again, whatever they are, and no two texts keep the page for long.
func TestADiffLeadsFromOneTextToTheOther(t *testing.T) {
	f := fleet.New(t)
	p := newPage(t, f)
	p.login("/sessions")
	js[bool](p, `import(document.querySelector('script[type="module"]').src.replace(/[^/]*$/, "diff.js")).then((m) => { globalThis.diff = m; return true; })`)
	wrong := js[[]string](p, `(() => {
		const sides = (steps) => {
			const a = [], b = [];
			for (const s of steps) {
				if (s.kind === "changed") {
					const [x, y] = sides(s.steps);
					a.push(x.join(""));
					b.push(y.join(""));
				} else {
					if (s.kind !== "added") a.push(s.value);
					if (s.kind !== "removed") b.push(s.value);
				}
			}
			return [a, b];
		};
		let seed = 7;
		const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
		const words = ["build", "with", "make", "构建", "发布", "the", "door", "is", "green", " ", "<b>", "&amp;"];
		const text = () => Array.from({length: random(7)}, () => Array.from({length: random(6)}, () => words[random(words.length)]).join(random(2) ? " " : ""));
		const wrong = [];
		const check = (a, b) => {
			const [x, y] = sides(diff.compareLines(a, b));
			if (JSON.stringify([x, y]) !== JSON.stringify([a, b])) wrong.push(JSON.stringify([a, b, x, y]).slice(0, 500));
		};
		for (let i = 0; i < 3000; i++) check(text(), text());
		const steps = diff.compareLines(["keep", "the door is blue", "old"], ["new", "keep", "the door is green"]);
		const short = steps.map((s) => s.kind).join();
		if (short !== "added,same,changed,removed") wrong.push(short);
		const chinese = diff.compareLines(["用 make 构建程序"], ["用 make 发布程序"]);
		if (chinese[0].kind !== "changed") wrong.push("words of Chinese: " + JSON.stringify(chinese));
		// As much as digests can hold, and nothing alike.
		const line = (tail) => "word ".repeat(390) + tail;
		const large = [0, 1].map((side) => Array.from({length: 4096}, (_, i) => line(side + "-" + i)));
		const begin = performance.now();
		check(...large);
		globalThis.took = performance.now() - begin;
		return wrong;
	})()`)
	for _, w := range wrong {
		t.Error(w)
	}
	t.Logf("the largest two digests were compared in %.0f ms", js[float64](p, `took`))
}
