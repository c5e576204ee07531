package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
)

// A dumpQuestion selects the part of the kernel's rules to print.
type dumpQuestion struct {
	mode, only string
	program    bool
	selection  datapath.Selection
}

// run prints the rules of each mode on this node.
func (q *dumpQuestion) run(ctx context.Context, e command.Env, format output.Format) error {
	if q.only != "" {
		n, err := api.ParseName(q.only)
		if err != nil {
			return fmt.Errorf("--service: %w", err)
		}
		q.selection.Only = &n
	} else if q.selection.Objects {
		return errors.New("--objects is for one Service [add --service NAMESPACE/SERVICE]")
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may read the kernel's rules [run it as root (sudo fairway dump), or in the agent's pod]")
	}
	all, err := modes.All().OpenHere(ctx, slog.New(slog.DiscardHandler), q.mode, modes.Options{})
	if err != nil {
		return err
	}
	var listing datapath.Listing
	for _, dp := range all {
		defer dp.Close()
		if q.program {
			if err := writeProgram(e.Stdout, dp.Info()); err != nil {
				return err
			}
			continue
		}
		one, err := datapath.List(ctx, dp, q.selection)
		if err != nil {
			return err
		}
		listing.Modes = append(listing.Modes, one)
	}
	if q.program {
		return nil
	}
	return output.Write(e.Stdout, format, dumped{listing})
}

// writeProgram writes the constant ruleset of a mode that has one.
func writeProgram(w io.Writer, mode datapath.Info) error {
	if mode.Program == "" {
		return fmt.Errorf("mode %s has no constant program [leave out --program]", mode.Name)
	}
	_, err := io.WriteString(w, mode.Program)
	return err
}
