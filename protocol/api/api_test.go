package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/protocol/api"
)

func TestNamesFollowTheRule(t *testing.T) {
	for _, good := range []string{"a", "0", "gpu-server", "a" + strings.Repeat("-", 30) + "b"} {
		if !api.ValidName(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "A", "a b", "a_b", "ä", "a\n", strings.Repeat("a", 33), "../etc"} {
		if api.ValidName(bad) {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestASuggestedNameIsAValidOne(t *testing.T) {
	for in, want := range map[string]string{"Desk.Local": "desk-local", "--x--": "x", "主机": "", strings.Repeat("Long", 20): strings.Repeat("long", 8)} {
		got := api.SuggestName(in)
		if got != want || got != "" && !api.ValidName(got) {
			t.Errorf("%q gives %q", in, got)
		}
	}
}

func TestEveryCodeHasOneErrorStatus(t *testing.T) {
	for code, status := range api.Codes() {
		if status < 400 || status > 599 || code.Status() != status || http.StatusText(status) == "" {
			t.Errorf("%s: %d", code, status)
		}
	}
	if s := api.Code("made_up").Status(); s != http.StatusInternalServerError {
		t.Errorf("a code that is not of the set has status %d", s)
	}
}

func TestErrorsKeepTheirCodeThroughWrapping(t *testing.T) {
	err := fmt.Errorf("dispatch: %w", api.Errorf(api.CodeUnknownTarget, "no node is named %q", "x"))
	if api.ErrorCode(err) != api.CodeUnknownTarget || !errors.Is(err, &api.Error{Code: api.CodeUnknownTarget}) {
		t.Errorf("lost in %v", err)
	}
	if errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
		t.Error("matches another code")
	}
	if api.ErrorCode(errors.New("foreign")) != api.CodeInternal || api.ErrorCode(nil) != "" {
		t.Error("foreign errors are internal, none is none")
	}
}

func TestAnAnswerThatIsNotOursStillGivesAnError(t *testing.T) {
	for status, want := range map[int]api.Code{401: api.CodeUnauthorized, 403: api.CodeForbidden, 404: api.CodeNotFound, 413: api.CodeTooLarge, 429: api.CodeRateLimited, 502: api.CodeUnavailable, 418: api.CodeInternal} {
		if e := api.DecodeError(status, []byte("<html>nginx</html>")); e.Code != want || e.Message == "" {
			t.Errorf("%d gives %v", status, e)
		}
	}
	body, err := json.Marshal(api.ErrorBody{Error: &api.Error{Code: api.CodeTooOld, Message: "m", Line: 3, RetryAfter: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "etry") {
		t.Errorf("Retry-After is in the body: %s", body)
	}
	if e := api.DecodeError(410, body); e.Code != api.CodeTooOld || e.Line != 3 {
		t.Errorf("got %+v", e)
	}
}

func TestAFillIsRoundedAndUnknownWithoutALimit(t *testing.T) {
	if p := (&api.Tokens{Total: 21340, Limit: 200000}).Percent(); p == nil || *p != 11 {
		t.Errorf("got %v", p)
	}
	if p := (&api.Tokens{Total: 5}).Percent(); p != nil {
		t.Errorf("got %d", *p)
	}
	if p := (*api.Tokens)(nil).Percent(); p != nil {
		t.Errorf("got %d", *p)
	}
}

func TestStatesAreSettledOrOpen(t *testing.T) {
	for s, settled := range map[api.State]bool{api.StateQueued: false, api.StateOffered: false, api.StateAccepted: false, api.StateHeld: false,
		api.StateRunning: false, api.StateQuestion: false, api.StateUnknown: false, api.StateDone: true, api.StatePartial: true, api.StateFailed: true,
		api.StateRefused: true, api.StateExpired: true, api.StateCanceled: true} {
		if !s.Valid() || s.Settled() != settled {
			t.Errorf("%s: valid %v settled %v", s, s.Valid(), s.Settled())
		}
	}
	if api.State("tired").Valid() {
		t.Error("tired is a state")
	}
}

func TestAPositiveDurationNeverBecomesZeroMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, -time.Second: 0, time.Nanosecond: 1, time.Millisecond: 1, 1500 * time.Microsecond: 2} {
		if got := api.Millis(d); got != want {
			t.Errorf("%s gives %d", d, got)
		}
	}
}
