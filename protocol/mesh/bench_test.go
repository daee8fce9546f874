package mesh_test

import (
	"strings"
	"testing"

	"opencode-mesh/protocol/mesh"
)

func BenchmarkParseEnvelope(b *testing.B) {
	text := sample + strings.Repeat("More of the task.\n", 50)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := mesh.ParseEnvelope(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFormatEnvelope(b *testing.B) {
	e := sampleEnvelope()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Format(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadReply(b *testing.B) {
	line := "some output of a tool, with a key: value and a [bracket]\n"
	for _, c := range []struct{ name, text string }{
		{"short", "Done.\n\n" + sampleResult},
		{"16KiB", strings.Repeat(line, 16<<10/len(line)) + sampleResult},
		{"1MiB", strings.Repeat(line, 1<<20/len(line)) + sampleResult},
		{"1MiB free", strings.Repeat(line, 1<<20/len(line))},
		// The worst that a reply can do: markers and broken blocks all over.
		{"1MiB of broken blocks", strings.Repeat("[opencode-mesh-result v1]\ntask: alpha-m5x2k9-7f3q\n", 1<<20/50)},
		{"1MiB of hints on one line", strings.Repeat("-mesh", 1<<20/5)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				mesh.ReadReply("alpha-m5x2k9-7f3q", c.text)
			}
		})
	}
}

func BenchmarkDefuse(b *testing.B) {
	prose := strings.Repeat("some output of a tool, with a key: value and a [bracket] 界\n", 16<<10/60)
	for _, c := range []struct{ name, text string }{
		{"16KiB of prose", prose},
		{"16KiB of markers", strings.Repeat("[opencode-mesh v1]\n", 16<<10/19)},
		{"1MiB of brackets and blanks", strings.Repeat("[ ", 1<<19)},
		{"1MiB of blanks in a bracket", "[" + strings.Repeat("\u200B", 1<<20/3)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				mesh.Defuse(c.text)
			}
		})
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mesh.NewID("alpha")
	}
}
