package userspace

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It reads the whole table; the listener that accepts
// the connections is in this process.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	return d.rules.Explain(ctx, func(h *kernelState) ([]datapath.Object, error) {
		table, err := h.table()
		if err != nil {
			return nil, err
		}
		return explain(table, k), nil
	})
}

// explain finds the objects of a frontend of the table that was read.
func explain(table *service.Table, k service.Key) (all []datapath.Object) {
	for f := range table.Frontends() {
		if f.Key() != k {
			continue
		}
		key := datapath.FrontKey(k)
		for _, e := range render(f) {
			o := datapath.Object{Kind: "set element", Name: "inet " + tableName + " " + e.set.Name(e.is4), Text: key}
			if e.comment != "" {
				o.Text += fmt.Sprintf(" comment %q", e.comment)
			}
			all = append(all, o)
		}
		for i, r := range [...]*service.Route{f.Internal, f.External} {
			for _, e := range r.Endpoints {
				if i == 0 || f.External != f.Internal {
					all = append(all, datapath.Object{Kind: "endpoint", Name: [...]string{"internal", "external"}[i], Text: e.String()})
				}
			}
		}
	}
	return all
}
