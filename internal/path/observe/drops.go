package observe

import (
	"errors"
	"time"

	"github.com/fairway-net/fairway/internal/path/trace"
)

var errMalformed = errors.New("malformed record")

type drops struct{}

type dropped struct{}

func openDrops(trace.Order) (*drops, error) { return nil, errors.New("not built") }

func (*drops) next() (dropped, error) { return dropped{}, errMalformed }
func (*drops) setDeadline(time.Time)  {}
func (*drops) close()                 {}
func (j *joiner) joinDrops()          {}
func overflows() uint64               { return 0 }
