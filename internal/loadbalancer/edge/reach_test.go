package edge

import (
	"context"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// restless are nodes that change all the time.
type restless struct {
	dirty chan struct{}
	reads int
}

func (r *restless) Synced() <-chan struct{} { return r.dirty }
func (r *restless) Dirty() <-chan struct{}  { return r.dirty }
func (r *restless) Instances() []service.Instance {
	r.reads++
	return nil
}

// TestNodesThatChangeAllTheTime: a Node object that changes all the time does not keep an edge busy.
func TestNodesThatChangeAllTheTime(t *testing.T) {
	r := &restless{dirty: make(chan struct{})}
	close(r.dirty)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := AskNodes(ctx, r, NewProber(Checks{}, nil, nil), Checks{}); err != nil {
		t.Fatal(err)
	}
	if r.reads == 0 || r.reads > 12 {
		t.Errorf("the nodes were read %d times in a second, want 10", r.reads)
	}
}
