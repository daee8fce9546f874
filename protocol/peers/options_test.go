package peers_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
)

func TestOptionsHaveTheNamesAndDefaultsOfTheOriginal(t *testing.T) {
	// Setting every one to its default, in its own unit, changes nothing.
	defaults := map[string]string{
		"heartbeatMs": "10000", "staleMs": "30000", "maxQueue": "50", "maxHeld": "100", "maxMessageBytes": "8192", "heldExpiryMs": "300000",
		"maxMessageAgeMs": "300000", "sendRatePerMin": "10", "recvRatePerMin": "20", "sweepMs": "15000",
	}
	var o peers.Options
	for name, value := range defaults {
		if err := o.Set(name, value); err != nil {
			t.Error(err)
		}
	}
	if o != peers.DefaultOptions() {
		t.Errorf("%+v, want %+v", o, peers.DefaultOptions())
	}
	if n := reflect.TypeOf(o).NumField(); n != len(defaults) || len(peers.OptionNames()) != n {
		t.Errorf("there are %d options and %d names", n, len(peers.OptionNames()))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	o := peers.DefaultOptions()
	for _, c := range []struct{ name, value, want string }{
		{"heartbeat", "1", "heartbeatMs, staleMs"},
		{"maxqueue", "1", "no option"},
		{"maxQueue", "0", "from 1 to"},
		{"maxQueue", "1.5", "whole number"},
		{"maxQueue", "", "whole number"},
		{"heartbeatMs", "10s", "whole number"},
		{"heartbeatMs", "1", "from 100 to"},
		{"staleMs", "99999999999999999999", "whole number"},
	} {
		if err := o.Set(c.name, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		}
	}
	if o != peers.DefaultOptions() {
		t.Errorf("a refused option was set: %+v", o)
	}
	if err := o.Set("maxHeld", "0"); err != nil || o.MaxHeld != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if err := o.Set("heldExpiryMs", "2000"); err != nil || o.HeldExpiry != 2*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
}
