package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/service"
)

// WriteProgram writes the constant ruleset of a datapath that has one.
func WriteProgram(w io.Writer, dp Datapath) error {
	info := dp.Info()
	if info.Program == "" {
		return fmt.Errorf("mode %s has no constant program [leave out --program]", info.Name)
	}
	_, err := io.WriteString(w, info.Program)
	return err
}

// WriteTable writes what the kernel does, and which mode makes it do so: for one Service, or
// for all if only is nil. With objects it adds the kernel objects behind each frontend.
func WriteTable(ctx context.Context, w io.Writer, dp Datapath, only *service.Name, objects bool) error {
	held, err := dp.Adopt(ctx)
	if err != nil {
		return err
	}
	table := held.Table
	if only != nil {
		if table = table.Only(*only); table == nil {
			return fmt.Errorf("the kernel holds nothing for Service %v", *only)
		}
	}
	if _, err := fmt.Fprintln(w, "mode", dp.Info().Name); err != nil {
		return err
	}
	if _, err = table.WriteTo(w); err != nil || !objects {
		return err
	}
	for _, f := range table.Sorted() {
		if err := writeObjects(ctx, w, dp, f); err != nil {
			return err
		}
	}
	return nil
}

// writeObjects writes the kernel objects that make a frontend work.
func writeObjects(ctx context.Context, w io.Writer, dp Datapath, f *service.Frontend) error {
	all, err := dp.Explain(ctx, f.Key())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%v %v\n", f.Key(), f.Service)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, o := range all {
		_, werr := fmt.Fprintf(tw, "  %s\t%s\t%s\n", o.Kind, o.Name, o.Text)
		err = errors.Join(err, werr)
	}
	return errors.Join(err, tw.Flush())
}
