package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/podnetwork/egress"
	"github.com/fairway-net/fairway/internal/service"
)

// An explanation says where packets to a Service go, and where packets of pods go that leave with its addresses.
type explanation struct {
	service.Report
	Egress []egress.Way `json:"egress,omitempty"`
}

// explain reads the API server and explains packets to one Service, from one place or from all places.
func explain(ctx context.Context, a *agent.Tool, subject, from string) (report explanation, err error) {
	name, err := api.ParseName(subject)
	if err != nil {
		return report, err
	}
	origins, err := service.ParseOrigins(from)
	if err != nil {
		return report, fmt.Errorf("--from: %w", err)
	}
	mode, err := modes.All().Info(ctx, a.Log, a.Config.Mode, a.Modes())
	if err != nil {
		return report, err
	}
	want, err := a.Wanted(ctx, mode)
	if err != nil {
		return report, err
	}
	svc, ok := want.Objects.Service(name)
	if !ok {
		client, err := kube.Connect(a.Connection())
		if err != nil {
			return report, err
		}
		return report, kube.WhyUnserved(ctx, client, name)
	}
	report.Report = service.NewReport(svc, want.Objects.Slices(name), want.Facts, want.Table.Entry(name), origins)
	report.addLoopback(a.Config.NodePorts.Loopback)
	report.Egress, err = a.Egress(want.Objects.Services(), name)
	return report, err
}

// addLoopback adds the loopback addresses at which the agent serves NodePorts for the node's own processes.
func (e *explanation) addLoopback(addrs []netip.Addr) {
	for i := range e.Frontends {
		f := &e.Frontends[i]
		at, proto, _ := strings.Cut(f.Address, "/")
		to, err := netip.ParseAddrPort(at)
		if f.Kind != service.KindNodePort || err != nil || proto == api.SCTP.String() {
			continue
		}
		for _, a := range addrs {
			if a.Is4() == to.Addr().Is4() {
				f.ServedAt = append(f.ServedAt, a.String())
			}
		}
	}
}

// WriteTable implements output.Value.
func (e explanation) WriteTable(w io.Writer, _ bool) error {
	if err := writeReport(w, e.Report); err != nil || len(e.Egress) == 0 {
		return err
	}
	fmt.Fprintln(w, "\nPackets of pods that leave the cluster:")
	for _, x := range e.Egress {
		text := "  " + x.Pods + ": with " + cmp.Or(x.Address, "no address yet")
		if x.Node != "" {
			text += ", by node " + x.Node
		}
		if x.Problem != "" {
			text += "; " + x.Problem
		}
		fmt.Fprintln(w, text)
	}
	return nil
}
