package names

import (
	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// Problems tells the owners of objects which parts of them have no effect, each part once. It belongs to one goroutine.
type Problems struct {
	events *kube.Recorder
	known  map[names.Problem]bool // that have an event
}

// NewProblems returns Problems that send events.
func NewProblems(events *kube.Recorder) *Problems { return &Problems{events: events} }

// Report sends an event for each problem that the last call did not have.
func (p *Problems) Report(c names.Cluster, problems []names.Problem) {
	uids := map[names.Ref]string{}
	for _, o := range c.Objects {
		uids[o.Ref] = o.UID
	}
	now := make(map[names.Problem]bool, len(problems))
	for _, one := range problems {
		now[one] = true
		if !p.known[one] {
			p.events.NameEvent(Reference(one.About, uids[one.About]), api.Problem{Reason: one.Reason, Message: one.Message})
		}
	}
	p.known = now
}
