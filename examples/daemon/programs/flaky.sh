# A server that falls over after a while.
echo "up"
sleep 15
echo "this should not happen" >&2
exit 3
