package docs

import (
	"go/constant"
	"go/types"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// limitPackages are those whose exported numbers are limits that operators may
// meet. Every one of them has a row in docs/limits.md.
var limitPackages = []string{
	"protocol/api", "protocol/mesh", "protocol/opencomms", "protocol/peers", "auth", "tunnel", "store", "store/boltdb",
	"hub", "hub/access", "hub/clock", "hub/events", "hub/mail", "hub/relay",
	"node", "node/link", "node/tasks", "node/mail", "node/agent/command", "node/ocp/provider",
	"node/opencomms", "node/opencomms/across", "node/opencomms/engine", "node/mcp", "node/opencomms/mcp", "node/opencomms/pins", "node/opencomms/push", "node/opencomms/statefile",
	"node/peers", "node/peers/access", "node/peers/outbox", "node/peers/registry", "node/peers/spool", "node/ocp/memory", "node/peers/relay",
}

// noLimits are exported numbers that bound nothing.
var noLimits = map[string]bool{
	"protocol/api.ProtocolVersion": true, "protocol/opencomms.SchemaVersion": true, "protocol/opencomms.ArchiveSchema": true,
	"protocol/peers.NoPID": true,
}

func TestLimitsPageAgreesWithTheConstants(t *testing.T) {
	c := newChecker()
	page := read(t, "docs/limits.md")
	documented := map[string]bool{}
	for _, row := range rows(page, "Limit", "Value", "When it is reached", "Constant") {
		if len(row) != 4 {
			t.Errorf("a row has %d cells: %v", len(row), row)
			continue
		}
		named := spans(row[3])
		if len(named) != 1 {
			t.Errorf("%s: one constant is wanted in the last cell, not %v", row[0], named)
			continue
		}
		dot := strings.LastIndexByte(named[0], '.')
		if dot < 0 {
			t.Errorf("%s: %q is not package.Constant", row[0], named[0])
			continue
		}
		documented[named[0]] = true
		value, ok := c.constants(t, named[0][:dot])[named[0][dot+1:]]
		if !ok {
			t.Errorf("%s: there is no constant %s", row[0], named[0])
			continue
		}
		if problem := disagrees(row[1], value); problem != "" {
			t.Errorf("%s (%s): %s", row[0], named[0], problem)
		}
	}
	for _, dir := range limitPackages {
		for name, v := range c.constants(t, dir) {
			if full := dir + "." + name; v.Exported() && isNumber(v.Type()) && !noLimits[full] && !documented[full] {
				t.Errorf("%s = %s has no row", full, v.Val())
			}
		}
	}
}

// isNumber tells plain numbers and durations from enumerations.
func isNumber(t types.Type) bool {
	if named, ok := t.(*types.Named); ok {
		return named.Obj().Name() == "Duration" && named.Obj().Pkg().Path() == "time"
	}
	b, ok := t.(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0
}

var quantity = regexp.MustCompile(`^([0-9][0-9,.]*)(?: (KiB|MiB|ms|s|min|h|days))?$`)

var sizes = map[string]float64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20}

var times = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "days": 24 * time.Hour,
}

// disagrees compares the text of a cell with a constant.
func disagrees(text string, v *types.Const) string {
	m := quantity.FindStringSubmatch(text)
	if m == nil {
		return "the value " + strconv.Quote(text) + " cannot be read"
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	if err != nil {
		return err.Error()
	}
	unit := sizes[m[2]]
	if _, timed := v.Type().(*types.Named); timed {
		unit = float64(times[m[2]])
	}
	if unit == 0 {
		return "the unit of " + strconv.Quote(text) + " is not that of the constant"
	}
	if is, _ := constant.Float64Val(constant.ToFloat(v.Val())); n*unit != is {
		return "the page says " + text + ", the constant is " + v.Val().String()
	}
	return ""
}
