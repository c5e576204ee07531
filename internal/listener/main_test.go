package listener

import (
	"testing"

	"github.com/fairway-net/fairway/internal/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }
