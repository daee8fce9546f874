package mcp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestCallsWaitForAllThatCameBefore(t *testing.T) {
	o := newOrder()
	first, second, third := o.enter(), o.enter(), o.enter()
	o.leave(second) // given up before its turn
	var mu sync.Mutex
	var done []string
	var wg sync.WaitGroup
	for name, e := range map[string]*sdk.RequestExtra{"first": first, "third": third} {
		wg.Go(func() {
			if err := o.wait(t.Context(), e); err != nil {
				t.Error(err)
			}
			mu.Lock()
			done = append(done, name)
			mu.Unlock()
			o.leave(e)
		})
	}
	wg.Wait()
	if strings.Join(done, " ") != "first third" {
		t.Error(done)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.enter()
	cancel()
	if err := o.wait(ctx, o.enter()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
