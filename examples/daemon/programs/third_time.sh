# Fails twice, then succeeds; remembers in the file $1 how often it tried.
tries=$(cat "$1" 2>/dev/null || echo 0)
tries=$((tries + 1))
echo "$tries" > "$1"
if [ $((tries % 3)) -ne 0 ]; then
    echo "try $tries: no answer"
    exit 1
fi
echo "try $tries: done"
