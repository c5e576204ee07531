package flow

import (
	"context"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Flow describes the flows of all clients of one frontend to one endpoint: packets to Frontend go to Endpoint. The
// kernel remembers such flows, or a datapath in user space.
type Flow struct {
	Proto api.Proto
	// Frontend is the original destination of the client. The unspecified address of a family stands for a NodePort:
	// this port on any address.
	Frontend netip.AddrPort
	// Endpoint is the source of the replies. The zero value describes untranslated flows: their replies would come from
	// the frontend itself. For a NodePort the zero value describes only flows to addresses of this machine. Flows to
	// the same port of another machine pass through the node, and do not belong to the Service.
	Endpoint netip.AddrPort
	// OnlyUnserved limits a NodePort to the addresses outside Settings.NodePorts, on which the node does not serve
	// NodePorts.
	OnlyUnserved bool
	// Unconfirmed says that the pod may be alive although it left the Service: its labels changed, or the Service was
	// deleted. The flow ends only if the pod is gone.
	Unconfirmed bool
	// OnlyUnanswered limits TCP to connections in state SYN_SENT, to which the endpoint has not replied. The client
	// sends the SYN again, and the new rules choose another endpoint. Established connections stay with the endpoint.
	OnlyUnanswered bool
	// Namespace is the Service's. Pod is the name of the endpoint's pod in that namespace, according to EndpointSlices.
	// Either is empty if it is not known.
	Namespace, Pod string
}

// A Key identifies a Flow. Two Flows with equal Keys describe the same flows.
type Key struct {
	Proto              api.Proto
	Frontend, Endpoint netip.AddrPort
	OnlyUnserved       bool
}

// Key returns the Key of f.
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
	if f.OnlyUnanswered {
		text += " that was not answered"
	}
	return text
}

// A Result says what an Ender did, also before an error.
type Result struct {
	// Ended counts the flows that were ended, or will end in a moment.
	Ended int
	// Unconfirmed has the Flows marked Unconfirmed of which at least one flow exists. The Ender leaves them alone.
	Unconfirmed []Flow
}

// add adds the Result of another Ender.
func (r *Result) add(o Result) {
	r.Ended += o.Ended
	r.Unconfirmed = append(r.Unconfirmed, o.Unconfirmed...)
}

// An Ender ends the flows that one memory has.
type Ender interface {
	// EndFlows ends all described flows except unconfirmed flows. After an error it may be called again. A flow that
	// has already ended is no error.
	EndFlows(ctx context.Context, flows []Flow) (Result, error)
	// AuditFlows ends all existing flows that c does not allow. It is for the start of the agent, when no earlier table
	// is known.
	AuditFlows(ctx context.Context, c *Checker) (Result, error)
}

// EndFunc is an Ender of flows that end with this process. AuditFlows has nothing to do, because no flow is older than
// the process.
type EndFunc func(ctx context.Context, flows []Flow) (Result, error)

// EndFlows implements Ender.
func (f EndFunc) EndFlows(ctx context.Context, flows []Flow) (Result, error) { return f(ctx, flows) }

// AuditFlows implements Ender.
func (f EndFunc) AuditFlows(context.Context, *Checker) (Result, error) { return Result{}, nil }
