package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testName is how pages name a test: directory.Function, or with the name of a
// case behind a slash. The contract of the stores is run by storetest.Run.
var testName = regexp.MustCompile(`^([a-z][a-z0-9/]*)\.((?:Test|Benchmark|Fuzz)[A-Za-z0-9_]+|Run|RunBackup)(?:/(.+))?$`)

// missing says what is wrong with the name of a test, "" if it is there or is not
// the name of one.
func missing(all map[string]source, name string) string {
	m := testName.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	s, ok := all[m[1]]
	switch {
	case !ok:
		return "there is no directory " + m[1]
	case s.funcs[m[2]] == nil:
		return "there is no " + m[2] + " in " + m[1]
	case m[3] != "" && !s.texts[m[3]]:
		return "there is no case of that name in " + m[1]
	}
	return ""
}

func TestEveryTestThatAPageNamesIsThere(t *testing.T) {
	all := allSources(t)
	for page, text := range pages(t) {
		for _, name := range spans(text) {
			if problem := missing(all, name); problem != "" {
				t.Errorf("%s: %s: %s", page, name, problem)
			}
		}
	}
}

// ruleHeading is the heading of a guarantee: "## 7. Cancel and expiry".
var ruleHeading = regexp.MustCompile(`(?m)^## ([0-9]+)\. .+$`)

func TestEveryGuaranteeNamesTheTestsThatHoldIt(t *testing.T) {
	page := read(t, "docs/guarantees.md")
	places := ruleHeading.FindAllStringSubmatchIndex(page, -1)
	var numbers []string
	for i, at := range places {
		end := len(page)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		number := page[at[2]:at[3]]
		numbers = append(numbers, number)
		held := 0
		for _, name := range spans(page[at[1]:end]) {
			if testName.MatchString(name) {
				held++
			}
		}
		if held == 0 {
			t.Errorf("guarantee %s names no test", number)
		}
	}
	want := strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24")
	if !slices.Equal(numbers, want) {
		t.Errorf("the page has the guarantees %v, wanted are %v", numbers, want)
	}
}

func TestEveryTargetNamesTheBenchmarkThatPrintsIt(t *testing.T) {
	list := rows(read(t, "docs/performance.md"), "Metric", "Gate", "Aim", "Measured", "Printed by")
	if len(list) == 0 {
		t.Fatal("the page has no table of targets")
	}
	for _, row := range list {
		if len(row) != 5 {
			t.Errorf("the row of %s has %d cells", row[0], len(row))
			continue
		}
		if row[3] == "" || row[4] == "" {
			t.Errorf("%s: not measured yet is said in words, and so is what will print it", row[0])
		}
		if strings.ContainsAny(row[3], "0123456789") && !slices.ContainsFunc(spans(row[4]), testName.MatchString) {
			t.Errorf("%s: a figure needs the name of what printed it", row[0])
		}
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	for page, text := range pages(t) {
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || to == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), filepath.FromSlash(to))); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

func TestEveryPageOfDocsCanBeReachedFromTheReadme(t *testing.T) {
	readme := read(t, "README.md")
	entries, err := os.ReadDir(filepath.Join(root, "docs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.Contains(readme, "docs/"+e.Name()) {
			t.Errorf("README.md does not name docs/%s", e.Name())
		}
	}
}

// metricName is the name of one of the hub's own metrics.
var metricName = regexp.MustCompile(`^mesh_[a-z_]+$`)

func TestOperationsPageListsEveryMetric(t *testing.T) {
	documented, real := map[string]bool{}, map[string]bool{}
	for _, row := range rows(read(t, "docs/operations.md"), "Metric", "Meaning") {
		documented[strings.Trim(row[0], "`")] = true
	}
	for text := range allSources(t)["hub/metrics"].texts {
		if metricName.MatchString(text) {
			real[text] = true
		}
	}
	same(t, "metric", documented, real)
}
