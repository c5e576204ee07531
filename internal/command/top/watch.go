package top

import (
	"context"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/kube"
)

// A NodeFrame has the rows of one node.
type NodeFrame struct {
	Node string
	top.Frame
}

// Watch reads the nodes as the command does, for other commands, until ctx ends. With a service, the rows are its endpoints.
// got is called once a second by one goroutine. The frames are in the order of the nodes' names.
func Watch(ctx context.Context, c kube.Connection, agents string, service api.Name, got func(frames []NodeFrame, notes []string)) error {
	q := &flags{connection: c, agents: agents, interval: time.Second}
	s, err := q.connect(ctx)
	if err != nil {
		return err
	}
	s.asker.follow(service)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.asker.run(ctx, s.ask)
	}()
	defer func() {
		cancel()
		<-done
	}()
	views := map[string]*top.View{}
	for _, n := range s.ask {
		views[n] = top.New(q.interval, []string{n})
	}
	ticks := time.NewTicker(q.interval)
	defer ticks.Stop()
	for {
		select {
		case a := <-s.asker.answers:
			if a.err != nil {
				views[a.node].Fail(a.node, a.at, a.err.Error())
			} else {
				views[a.node].Add(a.node, a.at, a.sample, a.endpointsOf)
			}
		case now := <-ticks.C:
			frames, notes := make([]NodeFrame, 0, len(s.ask)), s.notes
			for _, n := range s.ask {
				f := views[n].Frame(now, top.Query{Service: service, Sort: top.ByConnections})
				frames = append(frames, NodeFrame{n, f})
				notes = append(notes[:len(notes):len(notes)], f.Notes...)
			}
			got(frames, notes)
		case <-ctx.Done():
			return nil
		}
	}
}
