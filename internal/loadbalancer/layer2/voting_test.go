package layer2

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// A voterSource receives the written lists of voters.
type voterSource struct {
	*source
	wrote chan election.Voters
}

func (s voterSource) SetVoters(_ context.Context, v election.Voters) error {
	s.wrote <- v
	return nil
}

// TestVotersBesideProbes: as many probes as a speaker may run neither stop its loop when it writes the list of voters,
// nor keep it from writing. Whoever makes 64 Services chooses when so many probes run.
func TestVotersBesideProbes(t *testing.T) {
	src := voterSource{source: &source{}, wrote: make(chan election.Voters, 1)}
	s := New(Config{Log: slog.New(slog.DiscardHandler), Node: "node-1", Source: src, Metrics: NewMetrics(prometheus.NewRegistry(), "node-1")})
	s.member = election.New(election.Config{Self: "node-1", Timing: election.DefaultTiming, Random: func() uint64 { return 1 }})
	s.member.SetVoters(election.Voters{Epoch: 2, Names: []string{"node-1"}}) // the list in the API was deleted
	end := make(chan struct{})
	for range maxTasks {
		s.tasks.Go(func() error { <-end; return nil })
	}
	returned := make(chan struct{})
	go func() { s.writeVoters(t.Context()); close(returned) }()
	select {
	case <-returned:
	case <-time.After(election.DefaultTiming.Grant):
		t.Error("the loop waits for longer than a grant lasts")
	}
	select {
	case v := <-src.wrote:
		if v.Epoch != 2 {
			t.Errorf("%+v", v)
		}
	case <-time.After(60 * time.Second):
		t.Error("the list is not written")
	}
	close(end)
	<-returned
	_ = s.tasks.Wait()
	s.voting.write.Wait()
}
