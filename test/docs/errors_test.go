package docs

import (
	"go/constant"
	"go/types"
	"strconv"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
)

func TestErrorsPageListsEveryCodeWithItsStatus(t *testing.T) {
	documented := map[string]string{}
	for _, row := range rows(read(t, "docs/errors.md"), "Code", "Status", "Meaning", "What to do") {
		if len(row) != 4 || row[2] == "" || row[3] == "" {
			t.Errorf("the row of %s is not complete", row[0])
			continue
		}
		code := strings.Trim(row[0], "`")
		if _, twice := documented[code]; twice {
			t.Errorf("%s has two rows", code)
		}
		documented[code] = row[1]
	}
	real := map[string]string{}
	for code, status := range api.Codes() {
		real[string(code)] = strconv.Itoa(status)
	}
	same(t, "error code", documented, real)
	for code, status := range documented {
		if want, ok := real[code]; ok && status != want {
			t.Errorf("%s has status %s, the page says %s", code, want, status)
		}
	}
}

func TestErrorsPageListsEveryTaskCodeAndFlag(t *testing.T) {
	page := read(t, "docs/errors.md")
	documented := func(head ...string) map[string]bool {
		out := map[string]bool{}
		for _, row := range rows(page, head...) {
			out[strings.Trim(row[0], "`")] = true
		}
		return out
	}
	c := newChecker()
	declared := func(dir, prefix string) map[string]bool {
		out := map[string]bool{}
		for name, v := range c.constants(t, dir) {
			if strings.HasPrefix(name, prefix) && v.Val().Kind() == constant.String {
				out[constant.StringVal(v.Val())] = true
			}
		}
		return out
	}
	codes := declared("protocol/api", "Task")
	delete(codes, api.TaskTokenEnv)
	delete(codes, api.TaskTokenHeader)
	same(t, "task error", documented("Task error", "Meaning"), codes)

	flags := declared("protocol/api", "Flag")
	for f := range declared("node/agent/opencode", "flag") {
		flags[f] = true // those of one agent only
	}
	same(t, "flag", documented("Flag", "Meaning"), flags)

	states := declared("protocol/api", "State")
	same(t, "state", documented("State", "Meaning"), states)
}

func TestOpenCommsPageListsEveryRefusal(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range rows(read(t, "docs/opencomms.md"), "Refusal", "When", "What to do") {
		if len(row) != 3 || row[1] == "" {
			t.Errorf("the row of %s is not complete", row[0])
			continue
		}
		documented[strings.Trim(row[0], "`")] = true
	}
	codes := map[string]bool{}
	for _, v := range newChecker().constants(t, "node/opencomms/engine") {
		if named, ok := v.Type().(*types.Named); ok && named.Obj().Name() == "Code" {
			codes[constant.StringVal(v.Val())] = true
		}
	}
	same(t, "refusal", documented, codes)
}
