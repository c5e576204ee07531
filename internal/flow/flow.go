package flow

import (
	"context"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Flow is what the kernel, or a datapath in user space, remembers of clients of a
// frontend: their packets to Frontend go to Endpoint. It describes the flows of all clients.
type Flow struct {
	Proto api.Proto
	// Frontend is where the client sends to: the original destination. The unspecified
	// address of a family stands for a NodePort: this port on any address.
	Frontend netip.AddrPort
	// Endpoint is where the reply comes from. Invalid: the flow was never translated, so that
	// the reply would come from the frontend itself. Of a NodePort that means flows to
	// addresses of this machine only; flows to the same port of another machine pass here and
	// are not the Service's.
	Endpoint netip.AddrPort
	// OnlyUnserved narrows a NodePort to the addresses on which NodePorts are not served:
	// those outside Settings.NodePorts.
	OnlyUnserved bool
	// Unconfirmed says that the endpoint may live: a pod that left a Service may run on (its
	// labels changed, or the Service was deleted). The flow ends only if the pod is gone.
	Unconfirmed bool
	// Unanswered narrows TCP to connections of which the endpoint has not answered the first packet: it
	// gets no new ones any more, and keeps those that it has. The client repeats that packet, and it goes
	// by the rules of now.
	Unanswered bool
	// Namespace is the Service's, and Pod the name of the endpoint's pod in it, as far as
	// EndpointSlices said; empty: not known.
	Namespace, Pod string
}

// A Key identifies the flows that a Flow describes.
type Key struct {
	Proto              api.Proto
	Frontend, Endpoint netip.AddrPort
	OnlyUnserved       bool
}

// Key returns what identifies f.
func (f Flow) Key() Key { return Key{f.Proto, f.Frontend, f.Endpoint, f.OnlyUnserved} }

// String returns "10.96.0.10:53/UDP to 10.244.1.5:53" or "10.96.0.10:53/UDP untranslated".
func (f Flow) String() string {
	text := service.Key{Addr: f.Frontend, Proto: f.Proto}.String()
	if f.Endpoint.IsValid() {
		text += " to " + f.Endpoint.String()
	} else {
		text += " untranslated"
	}
	if f.OnlyUnserved {
		text += " on addresses without NodePorts"
	}
	if f.Unanswered {
		text += " that was not answered"
	}
	return text
}

// A Result is what an Ender did, also if it failed midway.
type Result struct {
	// Ended is how many existing flows were ended, or will be in a moment.
	Ended int
	// Unconfirmed are the Flows marked so of which some exist. Those were left alone.
	Unconfirmed []Flow
}

// add adds what another Ender did.
func (r *Result) add(o Result) {
	r.Ended += o.Ended
	r.Unconfirmed = append(r.Unconfirmed, o.Unconfirmed...)
}

// An Ender ends the flows of one memory.
type Ender interface {
	// EndFlows ends the existing flows of those described, but for unconfirmed ones. It may
	// be repeated after an error; a flow that is gone already is no error.
	EndFlows(ctx context.Context, flows []Flow) (Result, error)
	// AuditFlows ends all existing flows that c does not allow. It is for the start, when the
	// tables that came before are not known.
	AuditFlows(ctx context.Context, c *Checker) (Result, error)
}

// EndFunc is an Ender of flows that do not outlive this process: at the start there are
// none to audit.
type EndFunc func(ctx context.Context, flows []Flow) (Result, error)

// EndFlows implements Ender.
func (f EndFunc) EndFlows(ctx context.Context, flows []Flow) (Result, error) { return f(ctx, flows) }

// AuditFlows implements Ender.
func (f EndFunc) AuditFlows(context.Context, *Checker) (Result, error) { return Result{}, nil }
