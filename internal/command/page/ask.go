package page

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/command/path"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/path/trace"
)

const (
	maxSeen   = 500 // observations of one probe that a person is shown
	seenQueue = 64
)

// Ask implements web.Source. It sends the prediction, then the nodes' observations of the probe, then the comparison.
func (s *source) Ask(ctx context.Context, q web.Question, send func(web.Answer)) error {
	tool, err := s.agents(ctx)
	if err != nil {
		return err
	}
	asked, err := path.Ask(ctx, tool, q.From, q.To)
	if err != nil {
		return err
	}
	send(web.Answer{Path: asked.Path, Policies: asked.Policies(asked.Path)})
	if !q.Prove {
		return nil
	}
	seen := make(chan trace.Observation, seenQueue)
	done := make(chan web.Answer, 1)
	go func() {
		found := asked.Prove(ctx, func(o trace.Observation) {
			select {
			case seen <- o:
			case <-ctx.Done():
			}
		})
		done <- web.Answer{Path: found, Policies: asked.Policies(found)}
	}()
	told := narrator{}
	for n := 0; ; {
		select {
		case o := <-seen:
			if text := told.tell(o); text != "" && n < maxSeen {
				n++
				send(web.Answer{Seen: &web.Seen{Node: o.Node, Text: text}})
			}
		case a := <-done:
			send(a)
			return ctx.Err()
		}
	}
}

// A narrator describes the nodes' observations of a probe for a person: each hook of the packet once, and the end. It
// leaves out the rules that the packet only passes. The comparison has them.
type narrator map[string]bool

// tell returns one line; "": nothing new.
func (n narrator) tell(o trace.Observation) string {
	text := ""
	switch p := o.Packet; {
	case o.Drop != nil:
		text = strings.TrimSpace("dropped by the kernel: " + o.Drop.Reason + " " + o.Drop.Where)
	case o.Rule != nil && o.Rule.Ends():
		text = "ends at " + o.Rule.Hook + ": " + o.Rule.Place()
	case o.Rule != nil && p != nil:
		text = fmt.Sprintf("%s  %v → %v", o.Rule.Hook, p.Src, p.Dst)
	case o.Flow != nil && o.Flow.Event == "new":
		text = fmt.Sprintf("new connection  %v, answered as %v", o.Flow.Orig, o.Flow.Reply)
	default:
		text = o.Note
	}
	if text == "" {
		return ""
	}
	if o.Reply {
		text = "reply  " + text
	}
	if key := o.Node + " " + text; !n[key] {
		n[key] = true
		return text
	}
	return ""
}
